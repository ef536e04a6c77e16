// The server's internal headers, in the one order that works: standard headers and ours come before
// this file, because my_global.h defines macros that clash with libstdc++.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kernel.h"

#define MYSQL_SERVER 1
// The server's headers depend on this order.
// clang-format off
#include <my_global.h>
#include <mysql/plugin.h>
#include "sql_priv.h"
#include "sql_class.h"
#include "handler.h"
#include "discover.h"
#include "field.h"
#include "key.h"
#include "log.h"
#include "sql_table.h"
#include "table.h"
#include "table_cache.h"
// clang-format on
