//! The encoded messages in `tests/frames`: text files of hexadecimal digits, in which `#` begins a comment.

use bytes::Bytes;

pub const RPC_CALL: &str = include_str!("../frames/rpc_call.hex");
pub const EXCHANGE_ID: &str = include_str!("../frames/exchange_id.hex");
pub const CREATE_SESSION: &str = include_str!("../frames/create_session.hex");
pub const WRITE: &str = include_str!("../frames/write.hex");
pub const READDIR_REPLY: &str = include_str!("../frames/readdir_reply.hex");
pub const LAYOUTGET: &str = include_str!("../frames/layoutget.hex");
pub const XATTR: &str = include_str!("../frames/xattr.hex");
pub const CB_RECALL: &str = include_str!("../frames/cb_recall.hex");

pub const NATIVE_WRITE: &str = include_str!("../frames/native_write.hex");
pub const NATIVE_READ_REPLY: &str = include_str!("../frames/native_read_reply.hex");
pub const STATUS: &str = include_str!("../frames/status.hex");

pub const ALL: [&str; 11] = [
    RPC_CALL,
    EXCHANGE_ID,
    CREATE_SESSION,
    WRITE,
    READDIR_REPLY,
    LAYOUTGET,
    XATTR,
    CB_RECALL,
    NATIVE_WRITE,
    NATIVE_READ_REPLY,
    STATUS,
];

/// Returns the bytes of an encoded message from its hexadecimal text.
pub fn bytes(frame: &str) -> Bytes {
    let text: String = frame.lines().filter_map(|line| line.split('#').next()).collect();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    assert_eq!(digits.len() % 2, 0, "half a byte");
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
