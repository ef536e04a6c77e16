// What a storage node answered for one page, looked at before it is believed. Pure.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "proto/page_messages.h"

namespace strata::clients {

// Copies the page to `page`; OK if checksum, identity and llsn are what they must be, else what is
// there means nothing. `node` is for the message. *bad: the bytes are wrong (kDataLoss), as against
// what the node says itself.
Status take_page(const proto::PageWanted& wanted, const proto::PageView& got,
                 const std::string& node, char* page, bool* bad);

}  // namespace strata::clients
