"""Host side: registers, command mailbox, DMA, completions."""
