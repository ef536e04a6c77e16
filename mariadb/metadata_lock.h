// A metadata lock of the server, for threads of ours.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// If it can be had in time. With MDL_EXCLUSIVE nobody of this server uses what has that name, or
// begins to. Names as statements write them (plain_name()).
class MetadataLock {
 public:
  MetadataLock(THD* thd, enum_mdl_type type, MDL_key::enum_mdl_namespace kind, const char* schema,
               const char* name, double timeout_s)
      : thd_(thd) {
    MDL_REQUEST_INIT(&request_, kind, schema, name, type, MDL_EXPLICIT);
    // Refused when the time is over, or to break a circle: the caller tries again in either case.
    if (thd->mdl_context.acquire_lock(&request_, timeout_s)) {
      request_.ticket = nullptr;
      thd->clear_error();
    }
  }
  ~MetadataLock() {
    if (has_it()) thd_->mdl_context.release_lock(request_.ticket);
  }
  MetadataLock(const MetadataLock&) = delete;
  [[nodiscard]] bool has_it() const noexcept { return request_.ticket != nullptr; }
  [[nodiscard]] MDL_ticket* ticket() const noexcept { return request_.ticket; }

 private:
  THD* const thd_;
  MDL_request request_;
};

// What a file or folder is called in statements.
inline std::string plain_name(const std::string& file) {
  char plain[SAFE_NAME_LEN + 1];
  // The length that it returns is that of the text, which ends with a NUL in any case.
  (void)filename_to_tablename(file.c_str(), plain, sizeof plain, true);
  return plain;
}

}  // namespace strata::glue
