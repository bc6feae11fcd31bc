"""The handler of ``notifier.deliver``: tell people, through the guarded HTTP client or by SMTP.

Delivery is at least once. What is no longer open is not told: an approval that was decided, a dead letter that was
redriven, while the channel was down or quiet. The escalation is a job of its own, enqueued before the first attempt:
it comes also when this channel is down.

A link carries a token that decides one approval and opens its page, where a person decides; opening it decides nothing.
Approvals with named approvers or restricted content get a token only by e-mail to an approver, else a link to the page
behind the login.
"""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.context import Context
from holdfast.engine.job import Job
from holdfast.engine.outcome import Cancel, Failed, Reject, Snooze
from holdfast.engine.payload import encode
from holdfast.engine.retry import http_date, retry_after_delay
from holdfast.engine.states import State
from holdfast.errors import EgressError, EgressRefused, EgressUnreachable, InvalidSetting
from holdfast.features.approvals.model import Approval, ApprovalFilter, new_token, token_hash
from holdfast.features.notifiers.model import (
    DELIVER,
    SOURCE,
    TRUSTED_SOURCES,
    Message,
    Notifier,
    delivery_job,
    mail_text,
    page,
    plain,
    quiet_until,
    slack_message,
    teams_message,
)
from holdfast.features.payloads.model import HIDDEN, effective
from holdfast.features.webhooks import signing
from holdfast.features.webhooks.model import MAX_RETRY_AFTER, verdict_of
from holdfast.outgoing import Outgoing, send
from holdfast.outgoing.policy import Target
from holdfast.outgoing.sender import resolve
from holdfast.stores.flow import Steps, flow
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id
from holdfast.worker.shutdown import Ended

if TYPE_CHECKING:
    from holdfast.features.connectors.http_request import Outbound

TIMEOUT: Final = 20.0
LINK_TTL: Final = 7 * 86_400.0
SMTP_PORTS: Final = {"smtps": 465, "smtp": 587, "smtp+plain": 25}
"""TLS from the start; STARTTLS, required; no encryption, and therefore no password."""


def notify(reach: Outbound) -> Callable[..., Awaitable[dict[str, Any]]]:
    """The handler, which sends with the policy and the secrets of ``reach``."""

    async def deliver(
        ctx: Context,
        notifier: str,
        event: dict[str, Any] | None = None,
        message: dict[str, Any] | None = None,
        escalated: bool = False,
    ) -> dict[str, Any]:
        session, tenant = ctx._run.session, ctx.tenant
        job = await session.arun(session.store.jobs.get(ctx.job_id, tenant))
        trusted = {SOURCE} if event is None else TRUSTED_SOURCES
        if job is None or job.source_system not in trusted:
            raise Reject("notifier_not_yours", "an enqueued job cannot tell people that something has happened")
        channel = await session.arun(session.store.notifiers.get(notifier, tenant))
        if channel is None:
            raise Cancel(f"notifier {notifier} no longer exists")
        if not channel.enabled:
            raise Cancel(f"notifier {notifier} is disabled")
        about = await _about(ctx, event, message or {})
        if about is None:
            return {"skipped": "no longer open"}
        # Not again: two channels that escalate to each other would never end.
        if event is not None and channel.escalation is not None and not escalated:
            await session.arun(_escalate(session, channel, event, ctx.job_id))
        await _keep_quiet(ctx, channel, message or {})
        return await _Sender(ctx, channel, reach).send(about, escalated)

    deliver.__name__ = DELIVER.replace(".", "_")
    return deliver


@dataclass(frozen=True, slots=True)
class _About:
    """What a message is about: an approval that is open, a job that is a dead letter, or what the payload says.
    ``hidden``: the job is of a restricted kind, so its texts stay behind the login."""

    approval: Approval | None = None
    job: Job | None = None
    message: dict[str, Any] | None = None
    hidden: bool = False


async def _about(ctx: Context, event: dict[str, Any] | None, message: dict[str, Any]) -> _About | None:
    """Read again what the event is about; None if it is no longer open."""
    if event is None:
        return _About(message=message)
    session = ctx._run.session
    return await session.arun(_read(session, str(event.get("job_id")), event.get("name") == "job.ask", ctx.tenant))


@flow(writes=False)
def _read(caller: Caller, job_id: str, asks: bool, tenant: str) -> Steps[_About | None]:
    job = yield from caller.store.jobs.get(job_id, tenant).start()
    if job is None:
        return None
    rules = yield from caller.store.payload_rules.list(tenant).start()
    hidden = effective(rules, tenant, job.kind).restricted
    if not asks:
        return _About(job=job, hidden=hidden) if job.state is State.DEAD_LETTER else None
    wanted = ApprovalFilter(tenant=tenant, job_id=job_id, limit=1)
    approvals = yield from caller.store.approvals.list(wanted).start()
    return _About(approval=approvals[0], job=job, hidden=hidden) if approvals else None


@flow(notifies=True)
def _escalate(caller: Caller, notifier: Notifier, event: dict[str, Any], job_id: str) -> Steps[None]:
    """Enqueue the message to the next notifier, once for this job."""
    payload = {"event": event, "escalated": True}
    spec = delivery_job(
        notifier.escalation or "",
        payload,
        new_id(),
        f"notifier {notifier.name}",
        delay=notifier.escalate_after,
        key=f"escalation of {job_id}",
    )
    yield from caller.store.jobs.enqueue([spec], notifier.tenant).start()


async def _keep_quiet(ctx: Context, notifier: Notifier, message: dict[str, Any]) -> None:
    """Wait for the end of the quiet hours, except with critical health and tests."""
    if notifier.quiet is None or message.get("verdict") == "critical" or message.get("type") == "test":
        return
    session = ctx._run.session
    now = await session.arun(session.store.clock.now())
    until = quiet_until(notifier.quiet, now)
    if until is not None:
        raise Snooze((until - now).total_seconds() + 1, f"quiet hours of {notifier.name}: {notifier.quiet}")


class _Sender:
    def __init__(self, ctx: Context, notifier: Notifier, reach: Outbound) -> None:
        self._ctx, self._notifier, self._reach = ctx, notifier, reach

    async def send(self, about: _About, escalated: bool) -> dict[str, Any]:
        url = await self._secret(self._notifier.secrets[0])
        try:
            if self._notifier.channel == "email":
                messages = {to: await self._message(about, escalated, to) for to in self._notifier.recipients}
                return await self._mail(url, messages)
            return await self._post(url, await self._message(about, escalated))
        except EgressError as error:
            raise Ended(Failed(error.code, error.message, final=isinstance(error, EgressRefused))) from None

    async def _secret(self, name: str) -> str:
        try:
            return await self._reach.secret(name, self._notifier.tenant)
        except Reject as missing:  # retried: it may be set meanwhile
            raise InvalidSetting(str(missing), code="secret_missing") from None

    # --- content ---

    async def _message(self, about: _About, escalated: bool, recipient: str | None = None) -> Message:
        prefix = "Escalated: " if escalated else ""
        whose = {} if self._notifier.tenant == "default" else {"Tenant": self._notifier.tenant}
        if about.approval is not None and about.job is not None:
            asked = about.approval
            question = HIDDEN if about.hidden else asked.summary
            facts = {"Question": question, "Job": f"{about.job.kind} {asked.job_id}", "Asked by": asked.requester}
            facts |= {"Approvers": ", ".join(asked.people)} if asked.people else {}
            facts |= {"Until": f"{asked.expires_at:%Y-%m-%d %H:%M} UTC"} if asked.expires_at else {}
            return self._filled(
                "approval_needed",
                f"{prefix}Approval needed: {asked.name}",
                facts | whose,
                ("Open the decision page", await self._decision_link(asked, recipient, about.hidden)),
                {"approval_id": asked.id, "job_id": asked.job_id, "kind": about.job.kind},
            )
        if about.job is not None:
            job = about.job
            error = HIDDEN if about.hidden else f"{job.error_code or 'error'}: {job.error_message or ''}"
            return self._filled(
                "dead_letter",
                f"{prefix}Dead letter: {job.kind}",
                {"Error": error, "Job": job.id, "Queue": job.queue, "Attempts": str(job.attempt)} | whose,
                ("Open the job", page(self._notifier, f"/jobs/{job.id}")),
                {"job_id": job.id, "kind": job.kind, "queue": job.queue, "error_code": job.error_code},
            )
        message = about.message or {}
        link = ("Open the dashboard", page(self._notifier, "/system"))
        if message.get("type") == "health":
            title = f"Health is {message.get('verdict')} (was {message.get('was')})"
            reasons = {f"{each['level']} {each['code']}": each["says"] for each in message.get("reasons", [])[:8]}
            return self._filled("health", title, reasons | whose, link, message)
        title = f"Test message of notifier {self._notifier.name}"
        return self._filled("test", title, {"Sent by": "Holdfast"} | whose, link, {})

    def _filled(
        self, type: str, title: str, facts: dict[str, str], link: tuple[str, str | None], data: dict[str, Any]
    ) -> Message:
        redact = self._ctx._run.redact
        url = link[1]
        return Message(
            type=type,
            title=plain(redact(title, 200), 200),
            facts={plain(name, 60): plain(redact(str(value), 500)) for name, value in facts.items()},
            link=None if url is None else (link[0], url),
            data={"notifier": self._notifier.name, "tenant": self._notifier.tenant, **data},
        )

    async def _decision_link(self, asked: Approval, recipient: str | None, hidden: bool) -> str | None:
        """A link with a token that is valid for a week at most; or to the page behind the login."""
        notifier = self._notifier
        behind_login = page(notifier, f"/approvals/{asked.id}")
        person = recipient if recipient in asked.people else None
        if notifier.dashboard is None or hidden or asked.not_requester or (asked.people and person is None):
            return behind_login
        session, token = self._ctx._run.session, new_token(asked.id)
        saving = session.store.approvals.save_token(
            asked.id, token_hash(token, asked), person, LINK_TTL, f"notifier {notifier.name}", notifier.tenant
        )
        refused = await session.arun(saving)
        self._reach.redact.know(token)
        return behind_login if refused is not None else page(notifier, f"/decide/{token}")

    # --- HTTP ---

    async def _post(self, url: str, message: Message) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "User-Agent": "Holdfast-Notifiers/1"}
        match self._notifier.channel:
            case "slack":
                body = encode(slack_message(message)).encode()
            case "teams":
                body = encode(teams_message(message)).encode()
            case _:
                id, at = f"msg_{self._ctx.job_id.replace('-', '')}", self._ctx.created_at.astimezone(UTC)
                data = {**message.data, "title": message.title, "facts": dict(message.facts)}
                data |= {} if message.link is None else {"link": message.link[1]}
                content = {"type": f"notice.{message.type}", "timestamp": at.isoformat().replace("+00:00", "Z")}
                body = encode(content | {"data": data}).encode()
                headers |= signing.sign(await self._secret(self._notifier.secrets[1]), id, int(time.time()), body)
        policy = replace(self._reach.policy, redirects=0, cut=True, max_bytes=4_096)
        policy = policy if policy.plain_secrets else policy.secure()
        response = await send(Outgoing("POST", url, headers, body, TIMEOUT), policy)
        verdict = verdict_of(response.status, 0)
        if verdict.action == "delivered":
            return {"status": response.status}
        since = http_date(response.header("date")) or datetime.now(UTC)
        after = retry_after_delay(response.header("retry-after"), since, MAX_RETRY_AFTER)
        final = verdict.action == "gone" or (verdict.code == "webhook_refused" and self._ctx.attempt >= 5)
        said = plain(response.body[:200].decode("utf-8", "replace"), 100)
        reason = f"{self._notifier.channel} answered {response.status}: {said}"
        raise Ended(Failed("notifier_failed", reason, no_sooner=after, final=final))

    # --- SMTP ---

    async def _mail(self, url: str, messages: dict[str, Message]) -> dict[str, Any]:
        relay = _Relay.of(url)
        self._reach.redact.know(relay.password or "")
        policy = self._reach.policy
        addresses = await resolve(Target("https", relay.host, relay.port, "/"), policy)
        mails = [self._mail_of(to, message) for to, message in messages.items()]
        try:
            refused = await asyncio.to_thread(_send_mails, relay, addresses[0], mails, policy.tls)
        except smtplib.SMTPResponseException as error:
            final = 500 <= error.smtp_code < 600 and self._ctx.attempt >= 5
            raise Ended(Failed("notifier_failed", f"the mail server answered {error.smtp_code}", final=final)) from None
        except (OSError, smtplib.SMTPException) as error:
            raise EgressUnreachable(f"the mail server could not be used: {type(error).__name__}") from None
        if len(refused) == len(mails):
            raise Ended(Failed("notifier_failed", "the mail server refused every recipient", final=True))
        return {"sent": len(mails) - len(refused), "refused": len(refused)}

    def _mail_of(self, to: str, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = self._notifier.sender, to, message.title
        mail["Date"] = format_datetime(datetime.now(UTC))
        host = (self._notifier.sender or "").rpartition("@")[2]
        mail["Message-ID"] = f"<{self._ctx.job_id}.{zlib.crc32(to.encode()):x}@{host}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(mail_text(message))
        return mail


@dataclass(frozen=True, slots=True)
class _Relay:
    scheme: str
    host: str
    port: int
    user: str | None
    password: str | None

    @classmethod
    def of(cls, url: str) -> _Relay:
        """The parts of ``smtp://user:password@host:587``. Errors do not contain the URL, which is a secret."""
        try:
            parts = urlsplit(url)
            port = parts.port or SMTP_PORTS[parts.scheme]
            target = Target.of(f"https://{parts.hostname or ''}:{port}/")
        except (ValueError, KeyError, EgressRefused):
            raise Reject("invalid_notifier", "the secret is not a URL such as smtp://user:password@host:587") from None
        user, password = (None if each is None else unquote(each) for each in (parts.username, parts.password))
        if parts.scheme == "smtp+plain" and password is not None:
            raise Reject("invalid_notifier", "a password is not sent without encryption: use smtp:// or smtps://")
        return cls(parts.scheme, target.host, port, user, password)


def _send_mails(relay: _Relay, address: str, mails: list[EmailMessage], tls: ssl.SSLContext | None) -> list[str]:
    """Send over one connection to the checked address; return the recipients that the server refused."""
    context = tls or ssl.create_default_context()

    class Connected(smtplib.SMTP):
        def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
            plain = socket.create_connection((address, port), timeout)
            return context.wrap_socket(plain, server_hostname=host) if relay.scheme == "smtps" else plain

    refused = []
    with Connected(relay.host, relay.port, timeout=TIMEOUT) as server:
        if relay.scheme == "smtp":
            server.starttls(context=context)
        if relay.user is not None and relay.password is not None:
            server.login(relay.user, relay.password)
        for mail in mails:
            try:
                server.send_message(mail)
            except smtplib.SMTPRecipientsRefused as error:
                if any(400 <= code < 500 for code, _ in error.recipients.values()):
                    raise smtplib.SMTPResponseException(450, b"") from None
                refused.append(mail["To"])
    return refused
