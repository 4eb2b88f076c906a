// Two variable shifts in a row, written exactly as upstream Verilator issue 7955 has them. See test_canary.py.
module canary (
    input  logic [127:0] a,
    input  logic [6:0]   b,
    input  logic [6:0]   c,
    output logic [127:0] left,
    output logic [127:0] right
);
    assign left  = (a << b) << c;
    assign right = (a >> b) >> c;
endmodule
