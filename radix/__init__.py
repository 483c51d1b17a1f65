"""What is cached where: prompt identity as block hashes, and the tree that remembers who holds them."""
