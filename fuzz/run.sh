#!/bin/bash
# fuzz/run.sh [gguf tokenizer safetensors]: builds the extension with sanitizers into build/fuzz, then runs each harness
# for FUZZ_SECONDS. PYTHON is an environment with forerun's own dependencies, transformers and atheris. Findings go to
# build/fuzz/findings, inputs that reached new code to build/fuzz/corpus and are used again.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
OUT=$PWD/build/fuzz
mkdir -p "$OUT/findings" "$OUT/tree"
"$PYTHON" -c 'import atheris' || { echo "atheris is missing: $PYTHON -m pip install atheris" >&2; exit 1; }

# atheris brings the sanitizers' runtime together with libFuzzer, so the module is linked without one.
"$PYTHON" -m cmake -S . -B "$OUT/native" -DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')" \
  -DFORERUN_SANITIZE=address,undefined -DFORERUN_SANITIZE_LINK=OFF -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
  >"$OUT/cmake.log"
"$PYTHON" -m cmake --build "$OUT/native" -j "$(nproc)"
rm -rf "$OUT/tree"/*
cp -r src/forerun fuzz tests "$OUT/tree/"
rm -f "$OUT/tree/forerun/"_native*.so
[ -d "$OUT/bases" ] || PYTHONPATH=$PWD "$PYTHON" -m fuzz.bases "$OUT/bases"
cp "$OUT/native/"_native*.so "$OUT/tree/forerun/"

SITE=$("$PYTHON" -c 'import atheris, pathlib; print(pathlib.Path(atheris.__file__).parent.parent)')
export PYTHONPATH=$OUT/tree FORERUN_THREADS=1 FORERUN_HOME=$OUT/home PYTHONDONTWRITEBYTECODE=1
export FUZZ_FINDINGS=$OUT/findings FUZZ_BASES=$OUT/bases
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=0:max_allocation_size_mb=512:verify_asan_link_order=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
cd "$OUT/tree"
for name in ${@:-gguf tokenizer safetensors}; do
  mkdir -p "$OUT/corpus/$name"
  ls "$OUT/corpus/$name"/* >/dev/null 2>&1 || "$PYTHON" -m fuzz.seeds "$OUT/corpus/$name"
  end=$(($(date +%s) + ${FUZZ_SECONDS:-300}))
  while left=$((end - $(date +%s))); [ $left -gt 0 ]; do  # a crash ends a process: what is left of the time goes on
    LD_PRELOAD="$SITE/asan_with_fuzzer.so $(gcc -print-file-name=libubsan.so) $(gcc -print-file-name=libstdc++.so)" \
      "$PYTHON" "fuzz/fuzz_$name.py" "$OUT/corpus/$name" -artifact_prefix="$OUT/findings/$name-crash-" -timeout=300 \
      -rss_limit_mb=5000 -max_len=2048 -len_control=0 -max_total_time=$left -print_final_stats=1 || sleep 1
  done
done
found=$(find "$OUT/findings" -type f | head -20)
[ -z "$found" ] || { echo "findings:" "$found" >&2; exit 1; }
