// The settings of settings.def as variables the server fills. Written by the server under its own
// lock; read anywhere.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

#define STRATA_SETTING_TEXT(name, value, why) extern char* setting_##name;
#define STRATA_SETTING_BYTES(name, value, least, most, step, why) \
  extern unsigned long long setting_##name;
#define STRATA_SETTING_COUNT(name, value, least, most, why) extern unsigned int setting_##name;
#define STRATA_SETTING_FLAG(name, value, why) extern my_bool setting_##name;
#define STRATA_SETTING_LIVE(name, value, least, most, why) extern unsigned int setting_##name;
// Of no THD: the global value, with LOCK_global_system_variables held.
#define STRATA_SETTING_USER(name, value, least, most, why) \
  unsigned long session_setting_##name(THD* thd);          \
  constexpr unsigned long default_##name = value;
#define STRATA_SETTING_SWITCH(name, value, why) bool session_setting_##name(THD* thd);
// Does what the new value says. Not 0: it failed, and the error is reported.
#define STRATA_SETTING_ACT(name, why) \
  int act_on_##name(THD* thd, st_mysql_sys_var* variable, void* save, st_mysql_value* value);
#include "mariadb/settings.def"
#undef STRATA_SETTING_TEXT
#undef STRATA_SETTING_BYTES
#undef STRATA_SETTING_COUNT
#undef STRATA_SETTING_FLAG
#undef STRATA_SETTING_LIVE
#undef STRATA_SETTING_USER
#undef STRATA_SETTING_SWITCH
#undef STRATA_SETTING_ACT

extern st_mysql_sys_var* system_variables[];

}  // namespace strata::glue
