"""What all replicas know, and the time that they share."""
