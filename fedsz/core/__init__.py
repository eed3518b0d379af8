"""A state_dict -> a stream and back: whole, or as it differs from a model both sides hold."""
