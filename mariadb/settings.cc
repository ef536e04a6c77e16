// System variables strata_*, made from settings.def.
#include "mariadb/settings.h"

namespace strata::glue {

#define STRATA_SETTING_TEXT(name, value, why)                                                   \
  char* setting_##name;                                                                         \
  static MYSQL_SYSVAR_STR(name, setting_##name, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY, why, \
                          nullptr, nullptr, value);
#define STRATA_SETTING_BYTES(name, value, least, most, step, why)                                \
  unsigned long long setting_##name;                                                             \
  static MYSQL_SYSVAR_ULONGLONG(name, setting_##name, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY, \
                                why, nullptr, nullptr, value, least, most, step);
#define STRATA_SETTING_COUNT(name, value, least, most, why)                                      \
  unsigned int setting_##name;                                                                   \
  static MYSQL_SYSVAR_UINT(name, setting_##name, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY, why, \
                           nullptr, nullptr, value, least, most, 0);
#define STRATA_SETTING_FLAG(name, value, why)                                                    \
  my_bool setting_##name;                                                                        \
  static MYSQL_SYSVAR_BOOL(name, setting_##name, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY, why, \
                           nullptr, nullptr, value);
#define STRATA_SETTING_LIVE(name, value, least, most, why)                                   \
  unsigned int setting_##name;                                                               \
  static MYSQL_SYSVAR_UINT(name, setting_##name, PLUGIN_VAR_RQCMDARG, why, nullptr, nullptr, \
                           value, least, most, 0);
#define STRATA_SETTING_USER(name, value, least, most, why)                                        \
  static MYSQL_THDVAR_ULONG(name, PLUGIN_VAR_RQCMDARG, why, nullptr, nullptr, value, least, most, \
                            0);                                                                   \
  unsigned long session_setting_##name(THD* thd) { return THDVAR(thd, name); }
#define STRATA_SETTING_SWITCH(name, value, why)                                      \
  static MYSQL_THDVAR_BOOL(name, PLUGIN_VAR_OPCMDARG, why, nullptr, nullptr, value); \
  bool session_setting_##name(THD* thd) { return THDVAR(thd, name) != 0; }
#define STRATA_SETTING_ACT(name, why)                                                          \
  static MYSQL_THDVAR_STR(name, PLUGIN_VAR_NOCMDOPT | PLUGIN_VAR_MEMALLOC, why, act_on_##name, \
                          nullptr, nullptr);
#include "mariadb/settings.def"
#undef STRATA_SETTING_TEXT
#undef STRATA_SETTING_BYTES
#undef STRATA_SETTING_COUNT
#undef STRATA_SETTING_FLAG
#undef STRATA_SETTING_LIVE
#undef STRATA_SETTING_USER
#undef STRATA_SETTING_SWITCH
#undef STRATA_SETTING_ACT

st_mysql_sys_var* system_variables[] = {
#define STRATA_SETTING_TEXT(name, value, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_BYTES(name, value, least, most, step, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_COUNT(name, value, least, most, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_FLAG(name, value, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_LIVE(name, value, least, most, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_USER(name, value, least, most, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_SWITCH(name, value, why) MYSQL_SYSVAR(name),
#define STRATA_SETTING_ACT(name, why) MYSQL_SYSVAR(name),
#include "mariadb/settings.def"
    nullptr};

}  // namespace strata::glue
