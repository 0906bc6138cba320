//! Messages byte by byte: frames derived by hand from the RFCs, and what damage does to them.

#[path = "messages/captured.rs"]
mod captured;
#[path = "messages/damage.rs"]
mod damage;
#[path = "messages/frames.rs"]
mod frames;
#[path = "messages/golden.rs"]
mod golden;
