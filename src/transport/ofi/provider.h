// libfabric's objects as this module uses them: addresses, providers, handles that close
// themselves. Its types stay in this folder.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "transport/ofi/library.h"
#include "transport/sockets/socket.h"

namespace strata::transport::ofi {

struct InfoFreer {
  void operator()(fi_info* info) const noexcept { library().freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFreer>;

void close_fid(fid* fid) noexcept;
template <class Object>
struct Closer {
  void operator()(Object* object) const noexcept { close_fid(&object->fid); }
};
// Whoever has several declares them in the order in which they were made: what was made last must
// be closed first.
template <class Object>
using Handle = std::unique_ptr<Object, Closer<Object>>;

// "tcp:127.0.0.1:7000", "verbs:[fd00::1]:7000".
struct FabricAddress {
  std::string provider;
  SocketAddress socket;
};
StatusOr<FabricAddress> parse_fabric_address(const std::string& address);
std::string to_text(const FabricAddress& address);

enum class Side { kOwner, kPeer };  // who listens at the address, who connects to it
// A provider that keeps what remote_region.h promises: connected endpoints, puts in the order of
// their making, gets, too. Blocks (the first call of a process takes some 100 ms). Error:
// kInvalidArgument, there is none on this machine.
StatusOr<Info> find_provider(const FabricAddress& address, Side side);

[[nodiscard]] bool is_one_sided(const fi_info& info) noexcept;  // the owner's processor rests
// Whether a put can be asked to end only when it is visible; else a get behind it must tell.
[[nodiscard]] bool has_delivery_complete(const fi_info& info) noexcept;

// kUnavailable with the meaning of libfabric's number, of either sign.
Status fabric_error(const char* what, ssize_t error);

// Queues one can sleep on.
StatusOr<Handle<fid_eq>> open_events(fid_fabric* fabric, fi_wait_obj wait);
StatusOr<Handle<fid_cq>> open_completions(fid_domain* domain, size_t entries, fi_wait_obj wait);
StatusOr<Handle<fid_fabric>> open_fabric(fi_info* info);
StatusOr<Handle<fid_domain>> open_domain(fid_fabric* fabric, fi_info* info);
StatusOr<Handle<fid_ep>> open_endpoint(fid_domain* domain, fi_info* info);
Status enable(fid_ep* endpoint, fid_eq* events, fid_cq* completions);

}  // namespace strata::transport::ofi
