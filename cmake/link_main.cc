// The program of strata_link_test (cmake/strata.cmake): it only has to link.
int main() { return 0; }
