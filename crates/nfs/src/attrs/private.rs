//! Weir's own attributes, which no standard defines (`docs/native-protocol.md`). The server does not list them in
//! `supported_attrs`, and sends them only to clients that request them by number.

use super::form::{put_bool, put_u64};
use super::{Row, row};
use crate::fs::PolicyText;
use xdr::{Malformed, Reader, Writer};

/// Longest policy text that the decoder accepts, in bytes.
const POLICY_MAX: usize = 4096;

fn put_policy(out: &mut Writer, text: &PolicyText) {
    out.opaque(&text.server);
    out.opaque(&text.own);
}

fn take_policy(input: &mut Reader) -> Result<PolicyText, Malformed> {
    Ok(PolicyText { server: input.opaque(POLICY_MAX)?, own: input.opaque(POLICY_MAX)? })
}

pub(super) const POLICY: Row = row!(FATTR4_WEIR_POLICY, "weir_policy", weir_policy, put_policy, take_policy);
pub(super) const QUEUE_DELAY: Row =
    row!(FATTR4_WEIR_QUEUE_DELAY, "weir_queue_delay", weir_queue_delay, put_u64, Reader::u64);
pub(super) const SETTLED: Row = row!(FATTR4_WEIR_SETTLED, "weir_settled", weir_settled, put_u64, Reader::u64);
pub(super) const WRITER: Row = row!(FATTR4_WEIR_WRITER, "weir_writer", weir_writer, put_bool, Reader::bool);
