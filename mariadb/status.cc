#include "mariadb/status.h"

#include "mariadb/cluster.h"
#include "mariadb/error_map.h"
#include "mariadb/shared_statistics.h"

namespace strata::glue {
namespace {

// The variables below Strata_: the kernel's counters at this moment, in memory of the statement.
int show_counters(MYSQL_THD thd, st_mysql_show_var* out, void*, system_status_var*, enum_var_type) {
  static st_mysql_show_var none[] = {{nullptr, nullptr, SHOW_LONG}};
  out->type = SHOW_ARRAY;
  out->value = none;
  return guarded([&] {
    if (kernel == nullptr) return 0;
    std::vector<engine::Kernel::Counter> counters = kernel->counters();
    const std::vector<engine::Kernel::Counter> more = cluster_counters();
    counters.insert(counters.end(), more.begin(), more.end());
    if (kernel->shares_tables()) {
      const std::vector<engine::Kernel::Counter> shared = statistics_counters();
      counters.insert(counters.end(), shared.begin(), shared.end());
    }
    const size_t count = counters.size();
    auto* const variables = static_cast<st_mysql_show_var*>(
        thd_alloc(thd, static_cast<unsigned>((count + 3) * sizeof(st_mysql_show_var))));
    auto* const values = static_cast<ulonglong*>(
        thd_alloc(thd, static_cast<unsigned>((count + 1) * sizeof(ulonglong))));
    if (variables == nullptr || values == nullptr) return 0;
    for (size_t i = 0; i < count; ++i) {
      values[i] = counters[i].value;
      variables[i] = {counters[i].name, &values[i], SHOW_LONGLONG};
    }
    const auto show = [&](size_t place, const char* name, const Status& trouble) {
      const std::string text = trouble.ok() ? std::string() : cause_and_remedy(trouble);
      variables[place] = {name, thd_strdup(thd, text.c_str()), SHOW_CHAR};
      return variables[place].value != nullptr;
    };
    const Status cluster = cluster_trouble();
    if (!show(count, "cluster_trouble", cluster) ||
        !show(count + 1, "trouble", cluster.ok() ? kernel->trouble() : cluster))
      return 0;
    variables[count + 2] = {nullptr, nullptr, SHOW_LONG};
    out->value = variables;
    return 0;
  });
}

}  // namespace

st_mysql_show_var status_variables[] = {
    {"Strata", reinterpret_cast<void*>(&show_counters), SHOW_FUNC}, {nullptr, nullptr, SHOW_LONG}};

bool show_engine_status(handlerton*, THD* thd, stat_print_fn* print, ha_stat_type type) {
  if (type != HA_ENGINE_STATUS || kernel == nullptr) return false;
  bool failed = false;
  (void)guarded([&] {
    const std::string text = kernel->status_text();
    failed = print(thd, "STRATA", 6, "", 0, text.data(), text.size());
    return 0;
  });
  return failed;
}

}  // namespace strata::glue
