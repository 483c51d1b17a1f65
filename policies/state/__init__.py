"""Operations of the log, and the parts of the state that they are folded into, each on its own."""
