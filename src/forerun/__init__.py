"""forerun: exact speculative decoding."""
