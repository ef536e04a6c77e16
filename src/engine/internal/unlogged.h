// What a kernel is made of whose database ends with it (E30): private to this folder.
#pragma once

#include <memory>

#include "io/file_system.h"
#include "wal/control_file.h"
#include "wal/log_sink.h"

namespace strata::engine {

// Nothing is ever made durable in it. `inner` outlives it.
std::unique_ptr<FileSystem> make_unsynced_file_system(FileSystem* inner);
// Takes a log and keeps none of it; there is always room.
std::unique_ptr<LogSink> make_forgetting_log();
std::unique_ptr<ControlStore> make_control_in_memory();

}  // namespace strata::engine
