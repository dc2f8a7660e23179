"""PTX -> LLVM IR: one handler per opcode, grouped by family."""
