//! The walking skeleton: request, dispatch, ready, through the real program.

use crate::harness::{Queue, text};

#[test]
fn a_requested_book_is_ready_after_a_tick() {
    let queue = Queue::new();
    assert_eq!(queue.request("ok", "War and Peace")["state"], "queued");
    queue.dispatch().code(0).silent();
    let status = queue.status("ok", "War and Peace");
    assert_eq!(status["state"], "ready");
    let content = std::fs::read_to_string(text(&status["path"])).expect("the path opens");
    assert_eq!(content, "a good book: War and Peace\n");
    queue.assert_quiet();
}

#[test]
fn a_failed_book_says_why_and_is_no_failed_dispatch() {
    let queue = Queue::new();
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("code1", "A");
    assert_eq!(status["state"], "failed_unknown");
    assert_eq!(status["reason"], "exit_nonzero");
    assert_eq!(status["detail"], "exit 1: one image gave 404");
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}
