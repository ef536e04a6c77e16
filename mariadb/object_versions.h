// That something which servers keep for themselves has changed on one of several: a row of the
// kernel's journal for each kind, which the change writes in its own transaction.
//
//   OV1  A value of a version is never written twice. Who has seen a value, and compares, has
//        missed no change.
//   OV2  The row is locked from note_change() to the end of the transaction: changes of one kind
//        come one after the other in the whole cluster. It is the last thing that is waited for,
//        but for rows of the server's own tables.
#pragma once

#include <string>

#include "mariadb/server.h"

namespace strata::glue {

enum class SharedKind : uint8_t { kFiles, kAccounts, kServers, kRoutines, kEvents };
constexpr size_t kSharedKinds = 5;

// Errors: as of a row lock.
Status note_change(engine::Session* session, SharedKind kind);
// As committed. Empty: nothing has changed yet.
StatusOr<std::array<std::string, kSharedKinds>> all_versions();
StatusOr<std::string> version_of(SharedKind kind);
// This server has written it, in this life.
bool is_own_version(std::string_view version);

}  // namespace strata::glue
