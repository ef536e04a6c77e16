// Prints the fault points, one "name<TAB>doc" a line: the crash campaign reads it.
#include <cstdio>

int main() {
#define STRATA_FAULT_POINT(name, doc) std::printf("%s\t%s\n", #name, doc);
#include "base/fault_points.def"
#undef STRATA_FAULT_POINT
  return 0;
}
