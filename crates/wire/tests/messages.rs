//! Tests of message encoding: encoded messages derived by hand from the RFCs, messages captured from Linux, and damaged
//! messages.

#[path = "messages/captured.rs"]
mod captured;
#[path = "messages/damage.rs"]
mod damage;
#[path = "messages/frames.rs"]
mod frames;
#[path = "messages/golden.rs"]
mod golden;
