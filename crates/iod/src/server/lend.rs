//! LEND: descriptors of object files, for clients of this machine that read by themselves.
//!
//! A descriptor cannot be asked back, so it goes only to who could open the file anyway: to the superuser, and to the user
//! that the iod runs as. Everybody else reads by READ.

use rustix::io::Errno;
use types::Status;
use wire::native::{Failure, LendReply, Loan, ObjectArgs, Rights, encode_reply};
use wire::rpc::ReplyHeader;

use super::connection::{Broken, Connection};
use super::socket::Channel;
use crate::store::{HEAD_LEN, Lent};

impl<C: Channel> Connection<C> {
    /// Lends the file of an object.
    pub(super) fn lend(&mut self, xid: u32, args: &ObjectArgs) -> Result<(), Broken> {
        let lent = match self.find_to_lend(args) {
            Ok(Some(lent)) => lent,
            Ok(None) => return self.answer(xid, Ok(LendReply { loan: None })),
            Err(failure) => return self.answer::<LendReply>(xid, Err(failure)),
        };
        let reply = LendReply { loan: Some(Loan { begin: HEAD_LEN, mark: lent.mark.into() }) };
        self.encode(&ReplyHeader::success(xid), 0, |out| encode_reply(&Ok(reply), out));
        self.socket.wait_begins();
        match self.socket.send_lending(&self.output, &lent.file) {
            // Nothing was sent: more descriptors than the system allows wait for their receivers.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::TOOMANYREFS) => {
                self.answer::<LendReply>(xid, Err(Status::Delay.into()))
            }
            sent => {
                sent?;
                self.socket.wait_ends();
                Ok(())
            }
        }
    }

    fn find_to_lend(&self, args: &ObjectArgs) -> Result<Option<Lent>, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::READ)?;
        if !self.shared.lend || !self.socket.may_have_files() {
            let detail = "nothing is lent here, or not to you".to_owned();
            return Err(Failure { status: Status::NotSupp, detail: Some(detail) });
        }
        object.lend(self.store(), generation)
    }
}
