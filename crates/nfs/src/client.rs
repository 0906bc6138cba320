//! The NFSv4.1 client as pure data structures: sessions, COMPOUNDs, callbacks and recovery. The caller supplies
//! connections and time.

pub mod callback;
pub mod compound;
pub mod fattr;
pub mod recovery;
pub mod session;
pub mod slots;
