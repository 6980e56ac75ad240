"""Brokers by name: what each inherits, which routes it has, and what cannot work."""

from __future__ import annotations

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.config import check_listeners, mqtt_brokers, parse_config, read_security
from gateway.serving.frontends.mqtt.settings.broker import OWN, MqttBroker, MqttSettings, brokers
from tests.simulators.constants import settings_with
from tests.simulators.mqtt_gateway import FAST

TWO = """
[mqtt]
url = "mqtt://here"
username = "local"
password_file = "/etc/local"
ca = "/etc/local-ca.pem"
keepalive_s = 7
response_prefixes = ["replies/"]
home_assistant = {enabled = true}
[[mqtt.broker]]
name = "plant"
url = "mqtts://plant.example"
response_prefixes = []
[[mqtt.route]]
name = "a"
topics = ["a/+"]
model = "m"
[[mqtt.route]]
name = "b"
topics = ["a/+"]
model = "m"
broker = "plant"
"""
BROKER = '[[mqtt.broker]]\nname = "plant"\nurl = "{}"\n'
ROUTE = '[[mqtt.route]]\nname = "{}"\ntopics = ["{}"]\nmodel = "m"\nbroker = "{}"\n'


def test_each_broker_has_its_routes_and_inherits_what_is_not_set() -> None:
    found = mqtt_brokers(parse_config(TWO, ""))
    assert [(name, [route.name for route in each.route]) for name, each in found.items()] == [
        ("default", ["a"]),
        ("plant", ["b"]),
    ]
    plant = found["plant"]
    assert (plant.keepalive_s, plant.response_prefixes) == (7, ())
    assert found["default"].response_prefixes == ("replies/",)


def test_no_credential_goes_to_a_broker_that_it_is_not_for() -> None:
    found = mqtt_brokers(parse_config(TWO, ""))
    assert (found["default"].username, found["default"].ca) == ("local", "/etc/local-ca.pem")
    assert {getattr(found["plant"], key) for key in OWN if key not in {"url", "home_assistant"}} == {None}
    assert found["default"].home_assistant.enabled
    assert not found["plant"].home_assistant.enabled


def test_the_broker_of_the_table_mqtt_alone_is_as_it_was() -> None:
    settings = settings_with(MqttSettings(url="mqtt://a"), **FAST)
    assert brokers(settings) == {"default": settings}
    assert brokers(MqttSettings()) == {}


def test_named_brokers_need_no_default_and_are_enough_to_serve() -> None:
    text = '[grpc]\nlisten = ["off"]\n[http]\nlisten = ["off"]\n' + BROKER.format("mqtt://a")
    config = parse_config(text, "")
    check_listeners(config, read_security(config))
    assert list(mqtt_brokers(config)) == ["plant"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROUTE.format("a", "a", "plnt"), "mqtt.route[a].broker: no broker is called 'plnt'; known are default, plant"),
        (BROKER.format("mqtt://b"), "mqtt.broker[plant].name: two brokers have this name"),
        ('[[mqtt.broker]]\nname = "x"\nurl = "mqtt://here:1883"\n', "mqtt.broker[x].url: 'mqtt://here:1883' is the"),
        ('[[mqtt.broker]]\nname = "x"\nurl = "http://a"\n', "mqtt.broker[x].url: 'http://a' is no broker address"),
        ('[[mqtt.broker]]\nname = "x"\nurl = "mqtt://a"\ncert = "c"\n', "mqtt.broker[x].key: missing"),
        (ROUTE.format("a", "a", "default") + ROUTE.format("a", "b", "plant"), "mqtt.route[a].name: two routes"),
    ],
)
def test_brokers_that_cannot_work_are_refused_by_name(text: str, said: str) -> None:
    config = parse_config('[mqtt]\nurl = "mqtt://here"\n' + BROKER.format("mqtt://plant") + text, "c.toml")
    with pytest.raises(ConfigurationError) as refused:
        mqtt_brokers(config)
    assert str(refused.value).startswith(f"c.toml: {said}")


def test_a_route_of_the_default_broker_needs_its_url() -> None:
    config = parse_config(BROKER.format("mqtt://plant") + ROUTE.format("a", "a", "default"), "")
    with pytest.raises(ConfigurationError, match=r"^mqtt\.route\[a\]\.broker: \[mqtt\] has no url; .*: plant$"):
        mqtt_brokers(config)


@pytest.mark.parametrize("name", ["", "default", "..", ".x", "a/b", "x" * 65, "a\n"])
def test_a_name_is_a_word_that_a_folder_may_have(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MqttBroker(name, "mqtt://a")
    assert refused.value.key == "name"


def test_a_broker_needs_an_address() -> None:
    with pytest.raises(ConfigurationError, match="url"):
        MqttBroker("a", "")
