"""System tests: two NICs in RTL, the fabric between them, the golden model beside them."""
