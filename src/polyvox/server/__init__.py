"""The faces that Polyvox shows to the network."""
