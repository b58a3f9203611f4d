#include "capi/session.h"

#include "capi/call.h"

using namespace tandem;
using namespace tandem::capi;

namespace {

OpenSession& open(tandem_session* session) {
  need(session, "session");
  return *session->open;
}

}  // namespace

tandem_status tandem_session_new(tandem_model* model, const tandem_options* options,
                                 tandem_session** session) {
  if (session != nullptr) *session = nullptr;
  return guarded([&] {
    need(model, "model");
    need(session, "session");
    *session = new tandem_session{std::make_shared<OpenSession>(model->loaded, given(options))};
  });
}

void tandem_session_free(tandem_session* session) {
  delete session;
}

int64_t tandem_session_n_ctx(const tandem_session* session) {
  return session == nullptr ? 0 : session->open->session().n_ctx();
}

int64_t tandem_session_n_past(const tandem_session* session) {
  return session == nullptr ? 0 : session->open->n_past();
}

void tandem_session_interrupt(tandem_session* session) {
  if (session != nullptr) session->open->interrupt();
}

tandem_status tandem_session_complete(tandem_session* session, const tandem_options* options,
                                      const char* prompt, tandem_callback callback, void* user_data) {
  return guarded([&] {
    OpenSession& s = open(session);
    need(prompt, "prompt");
    s.begin(given(options), s.model().vocab().tokenize(prompt));
    for (tandem_stop stop = TANDEM_STOP_NONE; stop == TANDEM_STOP_NONE;) {
      const tandem_piece& piece = s.next();
      stop = piece.stop;
      if (callback != nullptr && callback(&piece, user_data) != 0) return s.stop();
    }
  });
}

tandem_status tandem_session_begin(tandem_session* session, const tandem_options* options, const int32_t* ids,
                                   size_t n_ids) {
  return guarded([&] {
    OpenSession& s = open(session);
    if (n_ids > 0) need(ids, "ids");
    s.begin(given(options), std::vector<int32_t>(ids, ids + n_ids));
  });
}

tandem_status tandem_session_next(tandem_session* session, const tandem_piece** piece) {
  if (piece != nullptr) *piece = nullptr;
  return guarded([&] {
    OpenSession& s = open(session);
    need(piece, "piece");
    *piece = &s.next();
  });
}

const tandem_result* tandem_session_get_result(const tandem_session* session) {
  return session == nullptr ? nullptr : &session->open->result();
}

tandem_status tandem_session_append(tandem_session* session, const int32_t* ids, size_t n_ids,
                                    const float** logits) {
  if (logits != nullptr) *logits = nullptr;
  return guarded([&] {
    OpenSession& s = open(session);
    if (n_ids == 0) throw_error(ErrorCode::usage, "no tokens to append");
    need(ids, "ids");
    const std::span<const int32_t> tokens(ids, n_ids);
    check_ids(s.model(), tokens);
    s.start_call();
    const LogitsWanted wanted = logits != nullptr ? LogitsWanted::all : LogitsWanted::largest;
    const TokenLogits row = s.session().append(tokens, wanted, [&](int64_t) { return !s.interrupted(); });
    if (row.empty()) return fail(TANDEM_INTERRUPTED, "interrupted");
    if (logits != nullptr) *logits = row.all().data();
    return TANDEM_OK;
  });
}

tandem_status tandem_session_truncate(tandem_session* session, int64_t n_tokens) {
  return guarded([&] {
    OpenSession& s = open(session);
    const int64_t n_past = s.session().n_past();
    if (n_tokens < 0 || n_tokens > n_past) {
      throw_error(ErrorCode::usage, "n_tokens is {}, needed 0 to {}", n_tokens, n_past);
    }
    s.stop();
    s.session().truncate(n_tokens);
  });
}
