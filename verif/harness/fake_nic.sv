// A stand-in for the NIC in tests of the harness itself: registers, memory and streams move, no protocol.
//
// CMD 0x10 sends DATA1 words of 8 bytes from host address DATA0 as one frame on plane DATA2. A received frame is written to host address
// DATA3 (then DATA3 grows by 4096), followed by one record of each owner and one completion whose length is its bytes.
// CMD 0x11 breaks the rule of AXI that no burst crosses 4 KiB. DATA4 != 0: received frames are not taken.
module mrc_nic (
    input  wire clk, rst,
    input  wire [15:0] s_axil_awaddr, input wire s_axil_awvalid, output wire s_axil_awready,
    input  wire [31:0] s_axil_wdata, input wire [3:0] s_axil_wstrb, input wire s_axil_wvalid, output wire s_axil_wready,
    output wire [1:0] s_axil_bresp, output reg s_axil_bvalid, input wire s_axil_bready,
    input  wire [15:0] s_axil_araddr, input wire s_axil_arvalid, output wire s_axil_arready,
    output reg [31:0] s_axil_rdata, output wire [1:0] s_axil_rresp, output reg s_axil_rvalid, input wire s_axil_rready,
    output wire m_axi_awid, output reg [63:0] m_axi_awaddr, output reg [7:0] m_axi_awlen, output wire [2:0] m_axi_awsize,
    output wire [1:0] m_axi_awburst, output reg m_axi_awvalid, input wire m_axi_awready,
    output wire [63:0] m_axi_wdata, output wire [7:0] m_axi_wstrb, output wire m_axi_wlast, output wire m_axi_wvalid, input wire m_axi_wready,
    input  wire m_axi_bid, input wire [1:0] m_axi_bresp, input wire m_axi_bvalid, output wire m_axi_bready,
    output wire m_axi_arid, output reg [63:0] m_axi_araddr, output reg [7:0] m_axi_arlen, output wire [2:0] m_axi_arsize,
    output wire [1:0] m_axi_arburst, output reg m_axi_arvalid, input wire m_axi_arready,
    input  wire m_axi_rid, input wire [63:0] m_axi_rdata, input wire [1:0] m_axi_rresp, input wire m_axi_rlast, input wire m_axi_rvalid,
    output wire m_axi_rready,
    output wire [63:0] m_axis_tx0_tdata, m_axis_tx1_tdata, output wire [7:0] m_axis_tx0_tkeep, m_axis_tx1_tkeep,
    output wire m_axis_tx0_tvalid, m_axis_tx1_tvalid, input wire m_axis_tx0_tready, m_axis_tx1_tready,
    output wire m_axis_tx0_tlast, m_axis_tx1_tlast, m_axis_tx0_tuser, m_axis_tx1_tuser,
    input  wire [63:0] s_axis_rx0_tdata, s_axis_rx1_tdata, input wire [7:0] s_axis_rx0_tkeep, s_axis_rx1_tkeep,
    input  wire s_axis_rx0_tvalid, s_axis_rx1_tvalid, output wire s_axis_rx0_tready, s_axis_rx1_tready,
    input  wire s_axis_rx0_tlast, s_axis_rx1_tlast, s_axis_rx0_tuser, s_axis_rx1_tuser,
    input  wire [1:0] link_up, output wire irq, output reg [31:0] tick,
    output reg trace_req_valid, output wire [`REQ_BITS-1:0] trace_req_data, output reg trace_rsp_valid, output wire [`RSP_BITS-1:0] trace_rsp_data
);
    reg [31:0] data[16], completions, lengths[64], seq;
    reg [5:0] head, tail;
    reg [3:0] div;
    wire write = s_axil_awvalid && s_axil_wvalid && !s_axil_bvalid;
    assign {s_axil_awready, s_axil_wready} = {2{write}};
    assign s_axil_arready = !s_axil_rvalid;
    assign {s_axil_bresp, s_axil_rresp} = 0;
    assign irq = head != tail;
    wire [5:0] words = 6'((s_axil_awaddr - 16'h40) >> 2);

    // Sending: read a burst, pass its beats on.
    assign {m_axi_awid, m_axi_arid} = 0;
    assign {m_axi_awsize, m_axi_arsize} = {3'd3, 3'd3};
    assign {m_axi_awburst, m_axi_arburst} = {2'd1, 2'd1};
    wire plane = data[2][0];
    assign {m_axis_tx0_tdata, m_axis_tx1_tdata} = {2{m_axi_rdata}};
    assign {m_axis_tx0_tkeep, m_axis_tx1_tkeep} = '1;
    assign {m_axis_tx0_tlast, m_axis_tx1_tlast} = {2{m_axi_rlast}};
    assign {m_axis_tx0_tuser, m_axis_tx1_tuser} = {2{m_axi_rlast && m_axi_rresp != 0}};
    assign {m_axis_tx0_tvalid, m_axis_tx1_tvalid} = {m_axi_rvalid && !plane, m_axi_rvalid && plane};
    assign m_axi_rready = plane ? m_axis_tx1_tready : m_axis_tx0_tready;
    reg reading;

    // Receiving: fill a buffer from one plane, write it, wait for the response.
    reg [63:0] buffer[512];
    reg [7:0] keep_last;
    reg [8:0] fill, drain;
    reg [1:0] state;  // 0 filling, 1 address, 2 data, 3 response
    reg from, bad;
    wire take = state == 0 && data[4] == 0;
    wire pick = fill == 0 ? !s_axis_rx0_tvalid : from;
    assign s_axis_rx0_tready = take && !pick;
    assign s_axis_rx1_tready = take && pick;
    wire beat = take && (pick ? s_axis_rx1_tvalid : s_axis_rx0_tvalid);
    wire last = pick ? s_axis_rx1_tlast : s_axis_rx0_tlast;
    wire [7:0] keep = pick ? s_axis_rx1_tkeep : s_axis_rx0_tkeep;
    assign m_axi_wdata = buffer[drain];
    assign m_axi_wlast = drain + 9'd1 == fill;
    assign m_axi_wstrb = m_axi_wlast ? keep_last : '1;
    assign m_axi_wvalid = state == 2;
    assign m_axi_bready = state == 3;
    assign trace_req_data = `REQ_BITS'({tick, seq, 16'h0000});
    assign trace_rsp_data = `RSP_BITS'({tick, seq, 8'(bad), 8'h0F});

    always @(posedge clk) begin
        div <= div + 1;
        if (div == 15) tick <= tick + 1;
        trace_req_valid <= 0;
        trace_rsp_valid <= 0;
        if (s_axil_bvalid && s_axil_bready) s_axil_bvalid <= 0;
        if (s_axil_rvalid && s_axil_rready) s_axil_rvalid <= 0;
        if (write) begin
            s_axil_bvalid <= 1;
            if (s_axil_awaddr >= 16'h40 && s_axil_awaddr < 16'h80) data[words[3:0]] <= s_axil_wdata;
            if (s_axil_awaddr == 16'hd8 && head != tail) head <= head + 1;
            if (s_axil_awaddr == 16'h84 && s_axil_wdata == 16) begin
                m_axi_arvalid <= 1;
                m_axi_araddr <= {32'd0, data[0]};
                m_axi_arlen <= 8'(data[1] - 1);
                reading <= 1;
            end
            if (s_axil_awaddr == 16'h84 && s_axil_wdata == 17) begin
                m_axi_awvalid <= 1;
                m_axi_awaddr <= 64'h0ff8;
                m_axi_awlen <= 1;
            end
        end
        if (s_axil_arvalid && s_axil_arready) begin
            s_axil_rvalid <= 1;
            case (s_axil_araddr)
                16'h000: s_axil_rdata <= 32'h4D524331;
                16'h010: s_axil_rdata <= {30'd0, link_up};
                16'h088: s_axil_rdata <= {reading, 31'd0};
                16'h0c4: s_axil_rdata <= {head != tail, 31'd0};
                16'h0c8: s_axil_rdata <= {26'd0, head};
                16'h0d0: s_axil_rdata <= lengths[head];
                default: s_axil_rdata <= 0;
            endcase
        end
        if (m_axi_arvalid && m_axi_arready) m_axi_arvalid <= 0;
        if (m_axi_rvalid && m_axi_rready && m_axi_rlast) reading <= 0;
        if (beat) begin
            buffer[fill] <= pick ? s_axis_rx1_tdata : s_axis_rx0_tdata;
            from <= pick;
            fill <= fill + 1;
            if (last) begin
                keep_last <= keep;
                bad <= pick ? s_axis_rx1_tuser : s_axis_rx0_tuser;
                lengths[tail] <= {20'd0, fill, 3'd0} + 32'($countones(keep));
                state <= 1;
                drain <= 0;
                m_axi_awvalid <= 1;
                m_axi_awaddr <= {32'd0, data[3]};
                m_axi_awlen <= 8'(fill);
            end
        end
        if (m_axi_awvalid && m_axi_awready) begin
            m_axi_awvalid <= 0;
            state <= 2;
        end
        if (m_axi_wvalid && m_axi_wready) begin
            drain <= drain + 1;
            if (m_axi_wlast) state <= 3;
        end
        if (m_axi_bvalid && m_axi_bready) begin
            state <= 0;
            fill <= 0;
            data[3] <= data[3] + 4096;
            tail <= tail + 1;
            seq <= seq + 1;
            trace_req_valid <= 1;
            trace_rsp_valid <= 1;
        end
        if (rst) begin
            {head, tail, fill, drain, state, seq, tick, div} <= 0;
            {m_axi_arvalid, m_axi_awvalid, s_axil_bvalid, s_axil_rvalid, reading} <= 0;
            for (int i = 0; i < 16; i++) data[i] <= 0;
        end
    end
endmodule
