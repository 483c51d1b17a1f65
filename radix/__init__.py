"""What is cached where: prompt identity as block hashes, and the tree that remembers who holds them."""

from radix.ops import Forget, Insert, TreeOp, Trim

__all__ = ["Forget", "Insert", "TreeOp", "Trim"]
