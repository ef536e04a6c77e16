#include "transport/ofi/provider.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/diag.h"

namespace strata::transport::ofi {
namespace {

// The providers of RDMA and of sockets; libfabric has others that emulate more than they say.
constexpr const char* kVerbs = "verbs";
constexpr const char* kTcp = "tcp";

// libfabric frees what its structures point to with free().
char* copy_text(const std::string& text) { return ::strdup(text.c_str()); }
void* copy_address(const SocketAddress& address) {
  void* const copy = std::malloc(address.bytes);
  if (copy != nullptr) std::memcpy(copy, &address.storage, address.bytes);
  return copy;
}

Info make_hints(const FabricAddress& address, Side side) {
  Info hints(library().dupinfo(nullptr));
  if (hints == nullptr) return hints;
  hints->caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  hints->mode = FI_RX_CQ_DATA;  // nothing of the kind is sent
  hints->ep_attr->type = FI_EP_MSG;
  hints->tx_attr->msg_order = FI_ORDER_RAR | FI_ORDER_WAW;  // RR2
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = copy_text(address.provider);
  hints->addr_format =
      address.socket.storage.ss_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  if (side == Side::kOwner) {
    hints->src_addr = copy_address(address.socket);
    hints->src_addrlen = address.socket.bytes;
  } else {
    hints->dest_addr = copy_address(address.socket);
    hints->dest_addrlen = address.socket.bytes;
  }
  return hints;
}

template <class Object, class Open>
StatusOr<Handle<Object>> opened(const char* what, Open open) {
  Object* object = nullptr;
  if (const int error = open(&object); error != 0) return fabric_error(what, error);
  return Handle<Object>(object);
}

}  // namespace

void close_fid(fid* fid) noexcept {
  // What fails here is a wrong order of closing, and leaks.
  if (const int error = ::fi_close(fid); error != 0)
    diag(Severity::kWarning, "fabric: closing an object: %s", library().strerror(-error));
}

StatusOr<FabricAddress> parse_fabric_address(const std::string& address) {
  const size_t colon = address.find(':');
  FabricAddress out;
  out.provider = address.substr(0, colon);
  if (colon == std::string::npos || (out.provider != kTcp && out.provider != kVerbs))
    return error_invalid_argument("fabric address " + address +
                                  ": must be tcp:address:port or verbs:address:port, in numbers");
  STRATA_ASSIGN_OR_RETURN(out.socket, parse_address("tcp" + address.substr(colon)));
  return out;
}

std::string to_text(const FabricAddress& address) {
  return address.provider + transport::to_text(address.socket).substr(std::strlen("tcp"));
}

StatusOr<Info> find_provider(const FabricAddress& address, Side side) {
  STRATA_ASSIGN_OR_RETURN(const Library* const fabric, load_library());
  const Info hints = make_hints(address, side);
  if (hints == nullptr) return error_no_space("fabric: no memory");
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  fi_info* found = nullptr;
  int error = fabric->getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found);
  if (error == -FI_ENODATA) {  // "verbs" has none
    hints->tx_attr->op_flags = 0;
    error = fabric->getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found);
  }
  if (error != 0)
    return error_invalid_argument("fabric address " + to_text(address) + ": libfabric's provider " +
                                  address.provider + ": " + library().strerror(-error));
  return Info(found);
}

bool is_one_sided(const fi_info& info) noexcept {
  return std::string_view(info.fabric_attr->prov_name) == kVerbs;
}

bool has_delivery_complete(const fi_info& info) noexcept {
  return (info.tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0;
}

Status fabric_error(const char* what, ssize_t error) {
  const int number = static_cast<int>(error < 0 ? -error : error);
  const std::string text = std::string("fabric: ") + what + ": " + library().strerror(number);
  return number == FI_ENOMEM ? error_no_space(text) : error_peer_down(text);
}

StatusOr<Handle<fid_eq>> open_events(fid_fabric* fabric, fi_wait_obj wait) {
  fi_eq_attr attributes{};
  attributes.wait_obj = wait;
  return opened<fid_eq>(
      "event queue", [&](fid_eq** out) { return ::fi_eq_open(fabric, &attributes, out, nullptr); });
}

StatusOr<Handle<fid_cq>> open_completions(fid_domain* domain, size_t entries, fi_wait_obj wait) {
  fi_cq_attr attributes{};
  attributes.size = entries;
  attributes.wait_obj = wait;
  attributes.format = FI_CQ_FORMAT_CONTEXT;
  return opened<fid_cq>("completion queue", [&](fid_cq** out) {
    return ::fi_cq_open(domain, &attributes, out, nullptr);
  });
}

StatusOr<Handle<fid_fabric>> open_fabric(fi_info* info) {
  return opened<fid_fabric>("provider", [&](fid_fabric** out) {
    return library().fabric(info->fabric_attr, out, nullptr);
  });
}

StatusOr<Handle<fid_domain>> open_domain(fid_fabric* fabric, fi_info* info) {
  return opened<fid_domain>(
      "domain", [&](fid_domain** out) { return ::fi_domain(fabric, info, out, nullptr); });
}

StatusOr<Handle<fid_ep>> open_endpoint(fid_domain* domain, fi_info* info) {
  return opened<fid_ep>("endpoint",
                        [&](fid_ep** out) { return ::fi_endpoint(domain, info, out, nullptr); });
}

Status enable(fid_ep* endpoint, fid_eq* events, fid_cq* completions) {
  int error = ::fi_ep_bind(endpoint, &events->fid, 0);
  if (error == 0) error = ::fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV);
  if (error == 0) error = ::fi_enable(endpoint);
  return error == 0 ? ok_status() : fabric_error("endpoint", error);
}

}  // namespace strata::transport::ofi
