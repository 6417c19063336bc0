"""How servers do under load: `forerun bench --load`, with every text compared with plain decoding's."""
