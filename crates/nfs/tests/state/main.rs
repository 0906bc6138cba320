//! The state tables of the server half, walked through every short history and compared with plain specifications.

mod clients;
mod helpers;
mod layouts;
mod opens;
mod recovery;
mod sessions;
mod slots;
