"""The demonstration: a small neural network trained by two ranks whose gradients cross the simulated fabric as RDMA Writes."""
