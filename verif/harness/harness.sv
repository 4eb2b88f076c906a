// Top of the system bench: two NICs; everything else is C++ behind one DPI call per clock.
//
// The vectors between Verilog and C++ are made of 32-bit words; harness.cpp (struct Words) has the same layout.
// PLANES_<n> is defined for the number of planes, TRACE when the NICs have commit trace ports.
`timescale 1ns / 1ps

`define PLANE(N) \
    .m_axis_tx``N``_tdata(tx_data[N]), .m_axis_tx``N``_tkeep(tx_keep[N]), .m_axis_tx``N``_tvalid(tx_valid[N]), \
    .m_axis_tx``N``_tready(o.tx_ready[N]), .m_axis_tx``N``_tlast(tx_last[N]), .m_axis_tx``N``_tuser(tx_user[N]), \
    .s_axis_rx``N``_tdata(rx_data[N]), .s_axis_rx``N``_tkeep(rx_keep[N]), .s_axis_rx``N``_tvalid(o.rx_valid[N]), \
    .s_axis_rx``N``_tready(rx_ready[N]), .s_axis_rx``N``_tlast(o.rx_last[N]), .s_axis_rx``N``_tuser(o.rx_user[N])

module mrc_side #(
    parameter int PLANES = 2, DW = 64, PW = 64, IDW = 4, AW = 64, REQ_BITS = 32, RSP_BITS = 32, NIC = 0,
    localparam int IN_WORDS = 12 + DW / 32 + PLANES * (2 + PW / 32),
    localparam int OUT_WORDS = 5 + DW / 32 + PLANES * (2 + PW / 32)
) (
    input  wire clk,
    input  wire rst,
    input  wire [32*OUT_WORDS-1:0] from_host,
    output wire [32*IN_WORDS-1:0] to_host
);
    import "DPI-C" function void mrc_record(input int nic, input int owner, input bit [4095:0] data);

    typedef struct packed {  // the first five words of the vector from C++, most significant first
        bit [7:0] stream_pad, rx_user, rx_last, rx_valid;
        bit [7:0] id_pad, rid, bid, strobe;
        bit [31:0] wdata;
        bit [15:0] araddr, awaddr;
        bit [7:0] tx_ready, link_up;
        bit pad, rlast;
        bit [1:0] rresp;
        bit rvalid, arready;
        bit [1:0] bresp;
        bit bvalid, wready, awready, axil_rready, axil_arvalid, axil_bready, axil_wvalid, axil_awvalid;
    } host_t;

    host_t o;
    assign o = from_host[159:0];

    wire axil_awready, axil_wready, axil_bvalid, axil_arready, axil_rvalid, irq;
    wire [1:0] axil_bresp, axil_rresp;
    wire [31:0] axil_rdata, tick;
    wire [IDW-1:0] awid, arid;
    wire [AW-1:0] awaddr, araddr;
    wire [7:0] awlen, arlen;
    wire [2:0] awsize, arsize;
    wire [1:0] awburst, arburst;
    wire awvalid, wlast, wvalid, bready, arvalid, rready;
    wire [DW-1:0] wdata;
    wire [DW/8-1:0] wstrb;
    wire [PW-1:0] tx_data[8], rx_data[8];
    wire [PW/8-1:0] tx_keep[8], rx_keep[8];
    wire [7:0] tx_valid, tx_last, tx_user, rx_ready;

    assign to_host[31:0] = {rx_ready, tx_valid, irq, rready, arvalid, bready, wlast, wvalid, awvalid, axil_rresp, axil_rvalid, axil_arready,
                            axil_bresp, axil_bvalid, axil_wready, axil_awready};
    assign to_host[63:32] = axil_rdata;
    assign to_host[95:64] = {11'd0, awburst, awsize, awlen, 8'(awid)};
    assign to_host[159:96] = 64'(awaddr);
    assign to_host[191:160] = {11'd0, arburst, arsize, arlen, 8'(arid)};
    assign to_host[255:192] = 64'(araddr);
    assign to_host[319:256] = 64'(wstrb);
    assign to_host[351:320] = {16'd0, tx_user, tx_last};
    assign to_host[383:352] = tick;
    assign to_host[384+:DW] = wdata;
    for (genvar p = 0; p < 8; p++) begin : plane
        if (p < PLANES) begin : used
            assign to_host[384 + DW + p * (64 + PW) +: 64] = 64'(tx_keep[p]);
            assign to_host[384 + DW + p * (64 + PW) + 64 +: PW] = tx_data[p];
            assign rx_keep[p] = from_host[160 + DW + p * (64 + PW) +: PW / 8];
            assign rx_data[p] = from_host[160 + DW + p * (64 + PW) + 64 +: PW];
        end else begin : unused
            assign {tx_valid[p], tx_last[p], tx_user[p], rx_ready[p]} = 4'd0;
        end
    end

`ifdef TRACE
    wire req_valid, rsp_valid;
    wire [REQ_BITS-1:0] req_data;
    wire [RSP_BITS-1:0] rsp_data;
    always @(posedge clk) begin
        if (!rst && req_valid) mrc_record(NIC, 0, 4096'(req_data));
        if (!rst && rsp_valid) mrc_record(NIC, 1, 4096'(rsp_data));
    end
`endif

    mrc_nic nic (
        .clk(clk), .rst(rst),
        .s_axil_awaddr(o.awaddr), .s_axil_awvalid(o.axil_awvalid), .s_axil_awready(axil_awready),
        .s_axil_wdata(o.wdata), .s_axil_wstrb(o.strobe[3:0]), .s_axil_wvalid(o.axil_wvalid), .s_axil_wready(axil_wready),
        .s_axil_bresp(axil_bresp), .s_axil_bvalid(axil_bvalid), .s_axil_bready(o.axil_bready),
        .s_axil_araddr(o.araddr), .s_axil_arvalid(o.axil_arvalid), .s_axil_arready(axil_arready),
        .s_axil_rdata(axil_rdata), .s_axil_rresp(axil_rresp), .s_axil_rvalid(axil_rvalid), .s_axil_rready(o.axil_rready),
        .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
        .m_axi_awvalid(awvalid), .m_axi_awready(o.awready),
        .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(o.wready),
        .m_axi_bid(o.bid[IDW-1:0]), .m_axi_bresp(o.bresp), .m_axi_bvalid(o.bvalid), .m_axi_bready(bready),
        .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
        .m_axi_arvalid(arvalid), .m_axi_arready(o.arready),
        .m_axi_rid(o.rid[IDW-1:0]), .m_axi_rdata(from_host[160+:DW]), .m_axi_rresp(o.rresp), .m_axi_rlast(o.rlast), .m_axi_rvalid(o.rvalid),
        .m_axi_rready(rready),
        `PLANE(0),
`ifdef PLANES_2
        `PLANE(1),
`endif
`ifdef PLANES_4
        `PLANE(2), `PLANE(3),
`endif
`ifdef PLANES_8
        `PLANE(4), `PLANE(5), `PLANE(6), `PLANE(7),
`endif
`ifdef TRACE
        .trace_req_valid(req_valid), .trace_req_data(req_data), .trace_rsp_valid(rsp_valid), .trace_rsp_data(rsp_data),
`endif
        .link_up(o.link_up[PLANES-1:0]), .irq(irq), .tick(tick)
    );
endmodule

module mrc_harness #(
    parameter int PLANES = 2, DW = 64, PW = 64, IDW = 4, AW = 64, REQ_BITS = 32, RSP_BITS = 32,
    parameter real CLOCK_NS = 8.0,
    localparam int IN_WORDS = 12 + DW / 32 + PLANES * (2 + PW / 32),
    localparam int OUT_WORDS = 5 + DW / 32 + PLANES * (2 + PW / 32)
);
    import "DPI-C" function void mrc_clock(input bit [64*IN_WORDS-1:0] in, output bit [64*OUT_WORDS-1:0] out, output int wake);

    bit clk = 0, rst = 1;
    bit wake = 0;  // Python waits for its rising edge
    bit [4:0] reset_clocks = 0;
    bit [64*OUT_WORDS-1:0] from_host = 0, next;
    wire [64*IN_WORDS-1:0] to_host;

    always #(CLOCK_NS / 2) clk = ~clk;

    always @(posedge clk) begin
        int stop;
        if (rst) begin
            reset_clocks <= reset_clocks + 1;
            rst <= reset_clocks != 15;
        end else begin
            // A statement of its own: as part of an expression it can be moved behind the use of `next`.
            mrc_clock(to_host, next, stop);
            wake <= stop != 0;
            from_host <= next;
        end
    end

    mrc_side #(.PLANES(PLANES), .DW(DW), .PW(PW), .IDW(IDW), .AW(AW), .REQ_BITS(REQ_BITS), .RSP_BITS(RSP_BITS), .NIC(0)) a (
        .clk(clk), .rst(rst), .from_host(from_host[32*OUT_WORDS-1:0]), .to_host(to_host[32*IN_WORDS-1:0]));
    mrc_side #(.PLANES(PLANES), .DW(DW), .PW(PW), .IDW(IDW), .AW(AW), .REQ_BITS(REQ_BITS), .RSP_BITS(RSP_BITS), .NIC(1)) b (
        .clk(clk), .rst(rst), .from_host(from_host[64*OUT_WORDS-1:32*OUT_WORDS]), .to_host(to_host[64*IN_WORDS-1:32*IN_WORDS]));
endmodule
