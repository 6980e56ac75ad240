"""Quotas of callers: rates (token buckets) of requests and of text, and requests under way. Decisions on values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.engine.settings import EVERY_CALLER, EngineSettings, QuotaSettings

SECOND_NS, MINUTE_S = 1_000_000_000, 60.0


@dataclass(slots=True)
class TextTokens:
    """Tokens of language models that a caller has left; below 0 after a longer text, which is written to its end."""

    left: float


@dataclass(slots=True, eq=False)
class QuotaUse:
    """Use of a quota by one caller. `tokens`: requests that it may make at once."""

    quota: QuotaSettings
    tokens: float
    texts: TextTokens
    refilled_ns: int
    in_flight: int = 0

    def refill(self, now_ns: int) -> None:
        """Add the tokens that the rate gave since the last time, at most up to the burst."""
        passed_s, quota = (now_ns - self.refilled_ns) / SECOND_NS, self.quota
        self.tokens = min(quota.allowance, self.tokens + passed_s * quota.requests_per_s)
        minute = quota.tokens_per_minute
        self.texts.left = min(minute, self.texts.left + passed_s * minute / MINUTE_S)
        self.refilled_ns = now_ns

    def of_step(self) -> QuotaUse:
        """Return the account of a step of a request: it pays for the same texts, and is no request of its own."""
        return replace(self, in_flight=1)


def quotas(settings: EngineSettings) -> Quotas | None:
    """Return the configured quotas, or None if there are none, so that they cost nothing."""
    if not settings.quota:
        return None
    return Quotas(settings.quota, callers=settings.quota_callers, retry_after_s=settings.retry_after_s)


class Quotas:
    """Accounts of the last `callers` callers. A new caller takes the place of the one that was idle longest.

    A forgotten caller starts with a full bucket. Callers with requests under way are never forgotten: the queues bound
    their number.
    """

    def __init__(self, quotas: Sequence[QuotaSettings], *, callers: int, retry_after_s: float) -> None:
        self._own = {quota.caller: quota for quota in quotas if quota.caller != EVERY_CALLER}
        self._others = next((quota for quota in quotas if quota.caller == EVERY_CALLER), None)
        self._callers, self._retry_after_s = callers, retry_after_s
        self._accounts: OrderedDict[str, QuotaUse] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered callers."""
        return len(self._accounts)

    def enter(self, caller: str, now_ns: int, *, writes: bool = False) -> QuotaUse | None:
        """Count one request under way; the code that ends it decrements `in_flight`. Return None without a quota.

        `writes`: it is to a language model, or to a pipeline that asks one. Raises RequestError OVERLOADED with the
        time after which the bucket holds a request, or a token of text, again.
        """
        quota = self._own.get(caller, self._others)
        if quota is None:
            return None
        account = self._account(caller, quota, now_ns)
        if quota.in_flight and account.in_flight >= quota.in_flight:
            raise self._refusal(caller, f"has {account.in_flight} requests under way, the most it may", None)
        account.refill(now_ns)
        if writes and quota.tokens_per_minute and account.texts.left < 1.0:
            minute, used = quota.tokens_per_minute, "tokens"
            words = f"has used {minute:g} tokens of text a minute, all that it may"
            raise self._refusal(caller, words, (1.0 - account.texts.left) * MINUTE_S / minute, used)
        if quota.requests_per_s:
            if account.tokens < 1.0:
                rate = account.quota.requests_per_s
                raise self._refusal(
                    caller, f"sends more than {rate:g} requests a second", (1.0 - account.tokens) / rate
                )
            account.tokens -= 1.0
        account.in_flight += 1
        return account

    def _refusal(self, caller: str, what: str, retry_after_s: float | None, used: str = "requests") -> RequestError:
        after = self._retry_after_s if retry_after_s is None else retry_after_s
        message = f"caller '{caller:.100}' {what}; come back later"
        return RequestError(Fault.OVERLOADED, message, retry_after_s=after, by_quota=used)

    def _account(self, caller: str, quota: QuotaSettings, now_ns: int) -> QuotaUse:
        account = self._accounts.get(caller)
        if account is None:
            if len(self._accounts) >= self._callers:
                idle = next((caller for caller, account in self._accounts.items() if not account.in_flight), None)
                if idle is not None:
                    del self._accounts[idle]
            texts = TextTokens(quota.tokens_per_minute)
            account = self._accounts[caller] = QuotaUse(quota, quota.allowance, texts, now_ns)
        else:
            self._accounts.move_to_end(caller)
        return account
