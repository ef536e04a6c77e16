#include "clients/storage/page_replies.h"

#include <cstring>

#include "base/page_name.h"
#include "page/page.h"

namespace strata::clients {

Status take_page(const proto::PageWanted& wanted, const proto::PageView& got,
                 const std::string& node, char* page, bool* bad) {
  const PageId id = wanted.page;
  STRATA_RETURN_IF_ERROR(got.status);
  std::memcpy(page, got.bytes.data(), kPageBytes);  // a reply's bytes are not aligned
  Status sound = verify_page(page, id);
  if (sound.ok() && Llsn{header_of(page)->llsn} > got.llsn)
    sound = error_corruption("its llsn is not what the node says");
  if (sound.ok() && got.llsn > wanted.at_most)
    sound = error_corruption("it is of llsn " + std::to_string(got.llsn.value) +
                             ", and was asked for as of " + std::to_string(wanted.at_most.value));
  *bad = !sound.ok();
  if (!sound.ok())
    return error_corruption(name_of(id) + " from storage node " + node + ": " +
                            std::string(sound.message()));
  return ok_status();
}

}  // namespace strata::clients
