//! Transmission of one callback: CB_SEQUENCE and one operation, on any live backchannel of the client (RFC 8881 §20).

use super::callbacks::{CallbackPath, Callbacks};
use super::{Server, lock};
use crate::fs::FileSystem;
use crate::state::ClientId;
use crate::state::sessions::CallbackEnd;
use bytes::Bytes;
use futures_util::future::{self, Either};
use std::pin::pin;
use std::task::Poll;
use wire::nfs4::compound::{Ops, OpsWriter, ResHeader};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Xdr};

/// A client's reply to a callback operation.
pub(super) struct Answered {
    pub(super) status: nfsstat4,
    /// The bytes of the operation's result after its status.
    pub(super) body: Reader,
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Sends one callback operation to a client and waits for the reply. Returns `None` if the client has no usable
    /// backchannel, or if the client does not reply.
    pub(super) async fn call_back(
        &self,
        client: ClientId,
        op: nfs_cb_opnum4,
        arguments: &impl Xdr,
    ) -> Option<Answered> {
        let back = lock(&self.state).backchannel(client)?;
        let minor = lock(&self.minors).get(&back.session).copied().unwrap_or(1);
        let mut ops = OpsWriter::new();
        ops.op(OP_CB_SEQUENCE, &back.sequence).op(op, arguments);
        let path = CallbackPath { connection: back.connection, program: back.program, security: back.security };
        let call = pin!(self.callbacks.call(path, ops.into_cb_args(Bytes::new(), minor, 0)));
        let gone = pin!(self.session_gone(back.session, back.slot.slot));
        let reply = match future::select(call, gone).await {
            Either::Left((reply, _)) => reply.ok(),
            // A client sends no callback reply on a session that it has destroyed, so stop waiting.
            Either::Right(_) => None,
        };
        self.not_calling(back.session, back.slot.slot);
        let (end, answered) = match reply.map(read) {
            Some(Ok(read)) => read,
            Some(Err(error)) => {
                tracing::warn!(client = client.0, %error, "malformed reply to a callback");
                (CallbackEnd::Lost, None)
            }
            None => (CallbackEnd::Lost, None),
        };
        lock(&self.state).callback_done(back.session, back.slot, end);
        answered
    }

    /// Waits until the session of a callback no longer exists. `slot` is the backchannel slot of the callback.
    async fn session_gone(&self, session: sessionid4, slot: u32) {
        future::poll_fn(|task| {
            // Register the waker before the check, so that an end of the session after the check wakes this task.
            lock(&self.calling).entry(session).or_default().insert(slot, task.waker().clone());
            if lock(&self.state).session(session).is_some() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Removes the waker of a callback that has ended.
    fn not_calling(&self, session: sessionid4, slot: u32) {
        let mut calling = lock(&self.calling);
        if let Some(slots) = calling.get_mut(&session) {
            slots.remove(&slot);
            if slots.is_empty() {
                calling.remove(&session);
            }
        }
    }
}

/// Decodes a callback reply: how CB_SEQUENCE ended, and the result of the operation after CB_SEQUENCE.
fn read(reply: Bytes) -> Result<(CallbackEnd, Option<Answered>), Malformed> {
    let mut input = Reader::new(reply);
    let header = ResHeader::decode(&mut input)?;
    let mut ops = Ops::new(header.numres, input);
    match ops.next_number()? {
        Some(number) if number == OP_CB_SEQUENCE as u32 => {}
        _ => return Ok((CallbackEnd::Refused, None)),
    }
    match ops.body()? {
        CB_SEQUENCE4res::NFS4_OK(_) => {}
        CB_SEQUENCE4res::Default(NFS4ERR_SEQ_MISORDERED) => return Ok((CallbackEnd::Misordered, None)),
        CB_SEQUENCE4res::Default(_) => return Ok((CallbackEnd::Refused, None)),
    }
    match ops.next_number()? {
        Some(_) => {
            let status = ops.body()?;
            Ok((CallbackEnd::Answered, Some(Answered { status, body: ops.input().clone() })))
        }
        None => Ok((CallbackEnd::Answered, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a reply to CB_RECALL in which all operations succeed.
    fn good() -> Vec<u8> {
        let sequence = nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::NFS4_OK(CB_SEQUENCE4resok::default()));
        let recall = nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status: NFS4_OK });
        CB_COMPOUND4res { status: NFS4_OK, tag: Bytes::new(), resarray: vec![sequence, recall] }.to_bytes().to_vec()
    }

    #[test]
    fn a_callback_reply_is_decoded() {
        let (end, answered) = read(good().into()).unwrap();
        assert_eq!((end, answered.unwrap().status), (CallbackEnd::Answered, NFS4_OK));
    }

    proptest! {
        /// Every damaged variant of a valid callback reply must decode to a result or an error, without a panic.
        #[test]
        fn damaged_callback_replies_cause_no_panic(at in 0..100usize, with in any::<u8>(), cut in 0..100usize) {
            let mut bytes = good();
            let at = at % bytes.len();
            bytes[at] ^= with;
            bytes.truncate(bytes.len() - cut % bytes.len());
            let _ = read(bytes.into());
        }

        #[test]
        fn random_callback_replies_cause_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(bytes.into());
        }
    }
}
