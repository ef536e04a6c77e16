#include "proto/resume_messages.h"

#include "proto/internal/message_fields.h"

namespace strata::proto {

using internal::append_caller;
using internal::append_list;
using internal::decoded;
using internal::read_caller;
using internal::read_list;
using internal::read_text;

namespace {

constexpr size_t kHeldPageBytes = 8 + 8 + 1;
constexpr size_t kHeldNameBytesMin = 4 + 8 + 8 + 1;

void append_page(std::string* out, const HeldPage& page) {
  append_u64(out, page.page.packed());
  append_u64(out, page.number);
  append_u8(out, static_cast<uint8_t>(page.mode));
}

bool read_page(ByteReader* in, HeldPage* page) {
  page->page = PageId::unpack(in->u64());
  page->number = in->u64();
  page->mode = static_cast<PageMode>(in->u8());
  return page->number != 0 &&
         (page->mode == PageMode::kShared || page->mode == PageMode::kExclusive);
}

void append_name(std::string* out, const HeldName& name) {
  append_bytes32(out, name.name);
  append_u64(out, name.use);
  append_u64(out, name.exclusive);
  out->push_back(static_cast<char>(name.shared ? 1 : 0));
}

bool read_name(ByteReader* in, HeldName* name) {
  const bool fits = read_text(in, kNameBytesMax, &name->name);
  name->use = in->u64();
  name->exclusive = in->u64();
  const uint8_t shared = in->u8();
  name->shared = shared == 1;
  return fits && shared <= 1 && (name->use != 0 || name->exclusive != 0) &&
         (!name->shared || name->exclusive != 0);
}

}  // namespace

std::string encode(const FusionResumeRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_bytes32(&out, request.token);
  return out;
}

StatusOr<FusionResumeRequest> decode_fusion_resume(Bytes bytes) {
  return decoded<FusionResumeRequest>(
      bytes, error_invalid_argument("not a server's request to go on"),
      [](ByteReader* in, FusionResumeRequest* out) {
        return read_caller(in, &out->caller) && read_text(in, kPoolTokenBytesMax, &out->token);
      });
}

std::string encode(const ReportHeldPagesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_list(&out, request.pages, append_page);
  return out;
}

StatusOr<ReportHeldPagesRequest> decode_report_held_pages(Bytes bytes) {
  return decoded<ReportHeldPagesRequest>(
      bytes, error_invalid_argument("not a report of pages that a server has"),
      [](ByteReader* in, ReportHeldPagesRequest* out) {
        return read_caller(in, &out->caller) &&
               read_list(in, kFusionPagesMax, kHeldPageBytes, &out->pages, read_page) &&
               !out->pages.empty();
      });
}

std::string encode(const ReportHeldNamesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_list(&out, request.names, append_name);
  return out;
}

StatusOr<ReportHeldNamesRequest> decode_report_held_names(Bytes bytes) {
  return decoded<ReportHeldNamesRequest>(
      bytes, error_invalid_argument("not a report of names that a server has"),
      [](ByteReader* in, ReportHeldNamesRequest* out) {
        return read_caller(in, &out->caller) &&
               read_list(in, kFusionNamesMax, kHeldNameBytesMin, &out->names, read_name) &&
               !out->names.empty();
      });
}

std::string encode(const ResumeEndedRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u64(&out, request.durable.value);
  append_u64(&out, request.page_number);
  append_u64(&out, request.name_number);
  append_u64(&out, request.round);
  return out;
}

StatusOr<ResumeEndedRequest> decode_resume_ended(Bytes bytes) {
  return decoded<ResumeEndedRequest>(bytes,
                                     error_invalid_argument("not the end of a server's report"),
                                     [](ByteReader* in, ResumeEndedRequest* out) {
                                       if (!read_caller(in, &out->caller)) return false;
                                       out->durable = Lsn{in->u64()};
                                       out->page_number = in->u64();
                                       out->name_number = in->u64();
                                       out->round = in->u64();
                                       return true;
                                     });
}

}  // namespace strata::proto
