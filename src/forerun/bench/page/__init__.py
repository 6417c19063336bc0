"""One self-contained HTML page of a bench's document: where time and tokens went."""
