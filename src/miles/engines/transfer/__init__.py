"""How weights travel between a policy and an engine: the pieces that both ends share, as SGLang's endpoints expect them."""
