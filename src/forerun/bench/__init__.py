"""The bench: plain decoding, every drafter at every k, and other engines, side by side in interleaved rounds."""
