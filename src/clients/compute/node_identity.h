// What tells a node's data folder from every other: a random number in a file, made once.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace strata {

class FileSystem;

namespace clients {

// Reads `directory`/node-identity, or makes it (and the folder), durable when this returns. Blocks.
// Errors: kDataLoss (names the file), those of the file system.
StatusOr<uint64_t> node_identity(FileSystem* files, const std::string& directory);

}  // namespace clients
}  // namespace strata
