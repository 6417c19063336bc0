// Computes everything that instruction sets could disagree about and writes it down, to be compared byte for byte with
// what another set or another processor computed (test_emulated.py).
//
//   harness FILE        all records to FILE, with the instruction set that FORERUN_ISA names or that is the best
//   harness --isas      the sets that this machine runs, best first; the first is the one chosen
//
// Both print a digest of each part. As the first process of an emulated machine, which has no file system to bring a
// file home from, it does both for every set in turn: digests tell as much.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "kernels/isa.h"
#include "kernels/table.h"
#include "records.h"
#include "rows/table.h"

namespace emulated {

namespace {

constexpr uint64_t kSeed = 1234567, kDigestStart = 1469598103934665603u, kDigestFactor = 1099511628211u;  // FNV-1a

FILE* file = nullptr;
uint64_t state = kSeed, digest = kDigestStart;
size_t num_records = 0;

void write(const void* data, size_t size) {
  if (file && fwrite(data, 1, size, file) != size) {
    perror("the records could not be written");
    exit(1);
  }
  for (size_t i = 0; i < size; ++i) digest = (digest ^ static_cast<const uint8_t*>(data)[i]) * kDigestFactor;
}

template <class Float, class Bits>
void put_numbers(const std::string& name, const Float* data, size_t n, Bits nan) {
  std::vector<Float> x(data, data + n);
  for (Float& v : x)
    if (v != v) memcpy(&v, &nan, sizeof v);
  put(name, x.data(), n * sizeof(Float));
}

void compute(const char* path) {
  file = path ? fopen(path, "wb") : nullptr;
  if (path && !file) {
    perror(path);
    exit(1);
  }
  forerun::Pool pool(1);
  printf("%s, rows %s\n", forerun::kernels().name, forerun::row_kernels().name);
  const struct {
    const char* name;
    void (*compute)(forerun::Pool& pool);
  } parts[] = {{"products", products}, {"layers", layers}, {"attention", attention}, {"rows", rows},
               {"decoders", decoders}};
  for (const auto& part : parts) {
    restart();
    num_records = 0;
    digest = kDigestStart;
    part.compute(pool);
    printf("  %-10s %5zu records %016llx\n", part.name, num_records, static_cast<unsigned long long>(digest));
    fflush(stdout);
  }
  if (file && fclose(file) != 0) {
    perror(path);
    exit(1);
  }
}

void list_isas() {
  for (const std::string& isa : forerun::usable_isas()) printf("%s\n", isa.c_str());
  fflush(stdout);
}

// The choice is made once in a process, hence one for each set.
void compute_all() {
  for (const std::string& isa : forerun::usable_isas()) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("FORERUN_ISA", isa.c_str(), 1);
      compute(nullptr);
      _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) != child) {
    }
    if (status != 0) printf("%s ended with status %d\n", isa.c_str(), status);
  }
  printf("done\n");
  for (;;) sleep(1000);  // a machine whose first process ends panics
}

}  // namespace

void restart() { state = kSeed; }

uint64_t bits64() {  // SplitMix64
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

size_t below(size_t n) { return size_t(bits64() % n); }

float uniform() { return float(bits64() >> 40) * 0x1p-24f; }

float normal() {
  float sum = 0;
  for (int i = 0; i < 6; ++i) sum += uniform();
  return (sum - 3.0f) * 1.41421356f;
}

float any_float(bool with_nans) {
  for (;;) {
    const uint32_t bits = uint32_t(bits64());
    float x;
    memcpy(&x, &bits, 4);
    if (with_nans || x == x) return x;
  }
}

std::vector<float> normals(size_t n, float scale) {
  std::vector<float> x(n);
  for (float& v : x) v = normal() * scale;
  return x;
}

void put(const std::string& name, const void* data, size_t size) {
  const uint32_t sizes[] = {uint32_t(name.size()), uint32_t(size)};
  write(sizes, sizeof sizes);
  write(name.data(), name.size());
  write(data, size);
  ++num_records;
}

void put_floats(const std::string& name, const float* data, size_t n) { put_numbers(name, data, n, 0x7FC00000u); }

void put_doubles(const std::string& name, const double* data, size_t n) {
  put_numbers(name, data, n, uint64_t(0x7FF8000000000000u));
}

}  // namespace emulated

int main(int argc, char** argv) {
  try {
    if (getpid() == 1) {
      emulated::list_isas();
      emulated::compute_all();
    }
    if (argc != 2) {
      fprintf(stderr, "usage: harness FILE | harness --isas\n");
      return 2;
    }
    if (strcmp(argv[1], "--isas") == 0)
      emulated::list_isas();
    else
      emulated::compute(argv[1]);
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
