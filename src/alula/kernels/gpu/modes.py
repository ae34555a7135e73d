"""What follows a product inside its kernel. Plain numbers, shared by the host's plan and the kernels."""

PLAIN, GATED, ADDING, QKV = range(4)
