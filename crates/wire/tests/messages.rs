//! Tests of message encoding: frames derived by hand from the RFCs, frames captured from Linux, and damaged frames.

#[path = "messages/captured.rs"]
mod captured;
#[path = "messages/damage.rs"]
mod damage;
#[path = "messages/frames.rs"]
mod frames;
#[path = "messages/golden.rs"]
mod golden;
