"""Never slower, measured: named cells, each with plain decoding, the adaptive policy and every fixed choice."""
