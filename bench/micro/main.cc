// Microbenchmarks of the kernel's modules, with the limits of the machine among them.
//   STRATA_MICRO_DIRECTORY=<folder on the disk to measure> strata_micro [--benchmark_filter=...]
#include "micro.h"

BENCHMARK_MAIN();
