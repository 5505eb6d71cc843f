//! Chance against a model: sequences that nobody thought of, on the store and on the cache, compared with what DESIGN says.

mod cache;
mod queue;
mod store;
